"""How a graph changes a text before it looks at it: letter case, white space around it, characters left out."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, replace
from typing import Literal

import onnx

from veltair.compiler.features.feature_description import CHARACTERS
from veltair.compiler.features.from_onnx.hash_buckets import CONTRIB
from veltair.compiler.features.from_onnx.key_sources import read_cleaning
from veltair.compiler.features.from_onnx.onnx_graph_index import OnnxGraphIndex
from veltair.compiler.features.hashed_values import clean_text

REPLACEMENTS = ("StringRegexReplace", "StaticRegexReplace", "RegexReplace")
# One character of a set, in the part of RE2's syntax that Python reads the same way.
CHARACTER_SET = re.compile(r"\[(\^?)((?:[^\[\]\\]|\\[^a-zA-Z0-9]|\\[dtnrfv])+)\][+]?", re.ASCII)
LETTERS = string.ascii_letters


@dataclass(frozen=True, slots=True)
class TextForm:
    """A form of a text: in a letter case, without the white space around it, without some characters.

    >>> TextForm(case="lower").remove
    ''
    """

    case: Literal["lower", "upper"] | None = None
    strip: bool = False
    remove: str = ""  # ASCII characters that are left out, after the case has changed
    keep: str = ""  # all but these are left out

    @property
    def leaves_out(self) -> bool:
        return bool(self.remove or self.keep)

    def of(self, text: bytes) -> bytes:
        """A text in this form."""
        changed = clean_text(text, self.case, strip=self.strip)
        if self.keep:
            return bytes(byte for byte in changed if byte in self.keep.encode())
        return changed.translate(None, self.remove.encode())


def read_form(node: onnx.NodeProto, form: TextForm, graph: OnnxGraphIndex) -> TextForm | None:
    """The form of a text behind a node that reads it in `form`; None for a node that makes no form of it.

    Raises ModelError for a replacement, or an order of steps, that no column has.
    """
    clean = read_cleaning(node)
    if clean is not None:
        if clean.strips and form.leaves_out:
            raise graph.error(node, "strips white space behind a replacement; expected it before")
        if clean.case is not None and _knows_case(form):
            raise graph.error(node, "changes the letter case behind a replacement of letters; expected it before")
        return replace(form, case=clean.case or form.case, strip=form.strip or clean.strips)
    if node.op_type not in REPLACEMENTS or node.domain not in ("", CONTRIB):
        return None
    pattern, instead = (graph.text(name) for name in (*node.input[1:3], "", "")[:2])
    remove, keep = read_character_set(pattern or "")
    if instead != "" or not remove + keep:
        expected = "one set of ASCII characters, such as [!?], and an empty text in their place"
        raise graph.error(node, f"replaces {pattern!r} by {instead!r}; expected {expected}")
    if form.keep and keep:
        return replace(form, keep="".join(sorted(set(form.keep) & set(keep))))
    if form.keep or (keep and form.remove):
        raise graph.error(node, "leaves out characters beside another replacement; expected one of them")
    return replace(form, remove="".join(sorted({*form.remove, *remove})), keep=keep)


def check_token_form(
    node: onnx.NodeProto, before: TextForm, after: TextForm, separator: str, graph: OnnxGraphIndex
) -> None:
    """Raises ModelError where a form of tokens is none of the text: letters that it is split at, tokens left empty."""
    if (before.remove, before.keep) != (after.remove, after.keep):
        raise graph.error(node, "leaves out characters of tokens; expected it before the split")
    if before.strip != after.strip and separator == CHARACTERS:
        raise graph.error(node, "strips white space of characters; expected it nowhere")
    if before.case != after.case and separator.isalpha() and separator != CHARACTERS:
        raise graph.error(node, f"changes the letter case of tokens that are split at {separator!r}")


def read_character_set(pattern: str) -> tuple[str, str]:
    """The ASCII characters that an expression matches, or those that it does not; both empty for other expressions.

    >>> read_character_set("[!?]+"), read_character_set("[^ab]")
    (('!?', ''), ('', 'ab'))
    """
    found = CHARACTER_SET.fullmatch(pattern)
    if found is None or not pattern.isascii():
        return "", ""
    try:
        one = re.compile(f"[{found[2]}]", re.ASCII)
    except re.error:
        return "", ""
    members = "".join(chr(code) for code in range(128) if one.fullmatch(chr(code)))
    return ("", members) if found[1] else (members, "")


def _knows_case(form: TextForm) -> bool:
    """Whether a letter is left out in one case and not in the other."""
    chosen = form.remove + form.keep
    return any((letter in chosen) != (letter.swapcase() in chosen) for letter in LETTERS)
