"""The names of metrics in an expression of PromQL."""

import re

_STRING = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")
_LABELS = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_WORDS = {
    "and",
    "or",
    "unless",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "offset",
    "bool",
    "inf",
    "nan",
}
_NAME = re.compile(r"(?<![\w:$])[a-zA-Z_:][\w:]*(?!\s*\()(?![\w:])")


def metric_names(expression: str) -> set[str]:
    """All identifiers but functions, keywords, and labels.

    >>> sorted(metric_names('sum by (tenant) (rate(a_total{x="b"}[5m])) / on (c) d:e > 1e3 and f'))
    ['a_total', 'd:e', 'f']
    """
    text = _STRING.sub('""', expression)
    text = re.sub(r"\{[^}]*\}", "", text)
    text = re.sub(r"\[[^\]]*\]", "", text)
    return {name for name in _NAME.findall(_LABELS.sub(" ", text)) if name.lower() not in _WORDS}
