"""What `make docs` generates from the code, so that no page can drift from it.

In Markdown, `[text](src:scheduler/state.py)` links to a page with that file's source. A comment becomes what it names:

    <!-- cli -->                                       the help of every command
    <!-- struct: veltair/config.py ServerConfig -->    a table of a class's fields: types, defaults, comments
    <!-- file: CHANGELOG.md -->                        that file
    <!-- errors -->, <!-- decisions -->                tables of the error classes, of the decision records
    <!-- refusals -->                                  the reasons of refusals
    <!-- stages -->                                    a table of the stages of a query's way

A name that does not exist fails the build.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import posixpath
import re
import tokenize
from collections.abc import Callable, Mapping
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
SOURCE_LINK = re.compile(r"\]\(src:([^)#]+)\)")
DIRECTIVE = re.compile(r"<!-- (cli|struct|file|decisions|errors|refusals|stages)(?::? ([^>]*?))? -->")
LANGUAGES = {
    ".py": "python",
    ".c": "c",
    ".h": "c",
    ".js": "javascript",
    ".toml": "toml",
    ".json": "json",
    ".yaml": "yaml",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page with the source of every file that some page links to."""
    linked: set[str] = set()
    for file in files.documentation_pages():
        linked.update(SOURCE_LINK.findall(file.content_string))
    for path in sorted(linked):
        source = ROOT / path
        if source.is_dir():
            source /= "__init__.py"
        if not source.is_file():
            raise PluginError(f"a page links to src:{path}, which does not exist")
        language = LANGUAGES.get(source.suffix, "text")
        text = f"# `{path}`\n\n~~~~{language}\n{source.read_text('utf-8')}\n~~~~\n"
        page = File.generated(config, f"source/{path}.md", content=text)
        page.inclusion = page.inclusion.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces directives and links to source files."""
    here = posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        return f"]({posixpath.relpath(f'source/{match[1]}.md', here or '.')})"

    def generated(match: re.Match[str]) -> str:
        return DIRECTIVES[match[1]](match[2] or "")

    return SOURCE_LINK.sub(link, DIRECTIVE.sub(generated, markdown))


def command_help(_: str) -> str:
    """The help of every command of `veltair`, 100 columns wide."""
    from veltair import cli
    from veltair.commands.shell import commands_of

    os.environ["COLUMNS"] = "100"
    parts = []
    for name, parser in commands_of(cli.build_parser()).items():
        parts.append(f"## veltair {name}\n\n```text\n{parser.format_help()}```\n")
    return "\n".join(parts)


def struct_table(argument: str) -> str:
    """The annotated fields of one class: name, type, default, and the comment at the end of the line."""
    path, name = argument.split()
    source = (ROOT / path).read_text("utf-8")
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    aliases = {
        target.id: _plain_type(node.value, {})
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name)
    }
    if name not in classes:
        raise PluginError(f"{path} has no class {name}")
    rows = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = "" if node.value is None else f"`{ast.unparse(node.value)}`"
            meaning = comments.get(node.end_lineno or node.lineno, "")
            kind = _plain_type(node.annotation, aliases).replace(" | ", " or ")
            rows.append(f"| `{node.target.id}` | `{kind}` | {default} | {meaning} |")
    return "\n".join(rows)


def _plain_type(annotation: ast.expr, aliases: Mapping[str, str]) -> str:
    """A type without what only msgspec reads: `Annotated[int, …]` is `int`, and an alias what it stands for."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        inner = annotation.slice
        return ast.unparse(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
    if isinstance(annotation, ast.BinOp):
        return f"{_plain_type(annotation.left, aliases)} | {_plain_type(annotation.right, aliases)}"
    return aliases.get(ast.unparse(annotation), ast.unparse(annotation))


def included_file(argument: str) -> str:
    return (ROOT / argument).read_text("utf-8")


def decision_list(_: str) -> str:
    """Every record in docs/decisions with its title and its decision's first sentence."""
    rows = []
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        text = path.read_text("utf-8")
        title = text.splitlines()[0].lstrip("# ")
        with contextlib.suppress(IndexError):
            first = text.split("## Decision", 1)[1].strip().removeprefix("- ").split("\n\n")[0].replace("\n", " ")
            sentence = re.split(r"(?<=[a-z0-9)`])\. ", first)[0].rstrip(".")
            rows.append(f"| [{title}]({path.name}) | {sentence}. |")
    return "\n".join(["| record | decision |", "| --- | --- |", *rows])


def error_table(_: str) -> str:
    """Every error that a client can see, with its status and code."""
    from veltair import errors

    shown = [kind for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "http_status")]
    rows = [f"| `{kind.__name__}` | {kind.http_status} | {kind.grpc_code} | {kind.__doc__ or ''} |" for kind in shown]
    return "\n".join(["| class | HTTP | gRPC | when |", "| --- | --- | --- | --- |", *rows])


def refusal_table(_: str) -> str:
    """The fixed list of reasons."""
    from veltair.errors import RefusalReason

    rows = ["| reason | what the client reads | HTTP | gRPC |", "| --- | --- | --- | --- |"]
    rows += [f"| `{each}` | {each.text} | {each.http_status} | {each.grpc_code} |" for each in RefusalReason]
    return "\n".join(rows)


def stage_table(_: str) -> str:
    """The stages of a query's way."""
    from veltair.server.ipc.stages import STAGES

    rows = [f"| `{stage.name}` | {stage.begins} | {stage.ends} |" for stage in STAGES]
    return "\n".join(["| stage | begins when | ends when |", "| --- | --- | --- |", *rows])


DIRECTIVES: dict[str, Callable[[str], str]] = {
    "cli": command_help,
    "struct": struct_table,
    "file": included_file,
    "decisions": decision_list,
    "errors": error_table,
    "refusals": refusal_table,
    "stages": stage_table,
}
