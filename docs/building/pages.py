"""Pages that are written while the site is built: the options of a run, and one page of the API per package.

mkdocs calls the functions ``on_…`` (mkdocs.yml names this file). Everything is read as text: the package need not be
installed, nor anything that it imports.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"


def on_config(config: Any) -> Any:
    """Lists the API's pages."""
    config["nav"] = [*config["nav"], {"API": [page_of(package) for package in packages()]}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are written here."""
    from mkdocs.structure.files import File  # here: the tests read the rest without mkdocs

    files.append(File.generated(config, "options.md", content=options_page()))
    for package in packages():
        files.append(File.generated(config, page_of(package), content=api_page(package)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Full names in backticks become links to their entries in the API; code blocks stay as they are.

    Links to files outside of docs/ serve those who read the page in the repository: the site keeps their words alone.
    """
    if page.file.src_uri.startswith("api/"):
        return markdown
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [_NAME.sub(_linked, _OUTSIDE.sub(r"\1", text)) for text in parts[::2]]
    return "".join(parts)


_OUTSIDE = re.compile(r"\[([^]]+)\]\(\.\./[^)]+\)")
_NAME = re.compile(r"(?<!\[)`(roleagent(?:\.\w+)+)`")


def _linked(match: re.Match[str]) -> str:
    name = match[1]
    short = name.removeprefix(f"{module_of(name)}.").rpartition("roleagent.")[2]
    return f"[`{short}`][{name}]" if has_entry(name) else match[0]


def module_of(name: str) -> str:
    """The longest beginning of a full name that is a module.

    >>> module_of("roleagent.envs.toy.ToyKitchen.reset")
    'roleagent.envs.toy'
    """
    parts = name.split(".")
    while parts and not (folder_of(".".join(parts)).with_suffix(".py").exists() or folder_of(".".join(parts)).is_dir()):
        parts.pop()
    return ".".join(parts)


def has_entry(name: str) -> bool:
    """Whether the API has an entry for a full name: it is defined in its module, public, and has a docstring.

    >>> has_entry("roleagent.similarity.lms"), has_entry("roleagent.similarity._components"), has_entry("roleagent.x.y")
    (True, False, False)
    """
    module = module_of(name)
    path = folder_of(module).with_suffix(".py")
    if not path.exists():
        return False  # a package: it has a page, and no entry on it
    body = ast.parse(path.read_text("utf-8")).body
    for part in name.removeprefix(module).lstrip(".").split(".") if name != module else ():
        found = [node for node in body if getattr(node, "name", None) == part]
        if part.startswith("_") or not found or not ast.get_docstring(found[0]):  # type: ignore[arg-type]
            return False
        body = found[0].body  # type: ignore[attr-defined]
    return True


# --- the API ----------------------------------------------------------------------------------------------------------


def packages() -> list[str]:
    """The packages that have a page: all but the numbered scripts of the failure library."""
    found = [
        ".".join(Path(folder).relative_to(SOURCE).parts)
        for folder, _, files in os.walk(SOURCE / "roleagent", followlinks=True)
        if "__init__.py" in files and not folder.endswith("versions")
    ]
    return sorted(found)


def page_of(package: str) -> str:
    """The page of a package.

    >>> page_of("roleagent"), page_of("roleagent.envs.toy")
    ('api/roleagent.md', 'api/envs.toy.md')
    """
    return f"api/{package.removeprefix('roleagent.')}.md"


def folder_of(package: str) -> Path:
    """Where a package lies in the tree."""
    return SOURCE.joinpath(*package.split("."))


def modules_of(package: str) -> list[str]:
    """The modules of a package, those of packages below it left out; ``__init__`` is the package itself."""
    names = [path.stem for path in sorted(folder_of(package).glob("*.py"))]
    inner = [f"{package}.{name}" for name in names if not name.startswith("_")]
    return ([package] if len(_documented(package)) else []) + inner


def _documented(package: str) -> str:
    text = (folder_of(package) / "__init__.py").read_text("utf-8")
    return text if len(text.splitlines()) > 1 else ""


def api_page(package: str) -> str:
    """The page of one package."""
    summary = ast.get_docstring(ast.parse((folder_of(package) / "__init__.py").read_text("utf-8"))) or ""
    first, *modules = modules_of(package) if _documented(package) else ["", *modules_of(package)]
    head = f"# {package}\n\n"
    head += f"::: {first}\n    options:\n      show_root_heading: false\n      members: false\n" if first else summary
    return head + "\n\n" + "\n\n".join(f"::: {module}" for module in modules) + "\n"


# --- the options ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """One option of a run as settings.py has it: name, type, default and the comment beside it."""

    name: str
    kind: str
    default: str
    comment: str


def sections() -> Iterator[tuple[str, str, list[Option]]]:
    """Section, what it is for, and its options, in the configuration's order; first the run's own, named ``""``."""
    classes: dict[str, tuple[str, list[Option]]] = {}
    config = [SOURCE / "roleagent" / "config" / name for name in ("settings.py", "curriculum.py", "__init__.py")]
    for path in (*config, SOURCE / "roleagent" / "learners" / "agent_r" / "options.py"):
        source = path.read_text("utf-8")
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                fields = [
                    _option(field, lines) for field in node.body if isinstance(field, ast.AnnAssign) and field.value
                ]
                classes[node.name] = (ast.get_docstring(node) or "", fields)
    summary, own = classes["Config"]
    yield "", summary, [option for option in own if option.kind not in classes]
    yield from _below("", own, classes)
    yield from _below("options.", classes["AgentROptions"][1], classes)  # those of methods that have sections


def _below(prefix: str, fields: list[Option], classes: Any) -> Iterator[tuple[str, str, list[Option]]]:
    for field in fields:
        if field.kind in classes:
            summary, options = classes[field.kind]
            yield prefix + field.name, summary, [option for option in options if option.kind not in classes]
            yield from _below(f"{prefix}{field.name}.", options, classes)


def _option(field: ast.AnnAssign, lines: list[str]) -> Option:
    end = field.end_lineno or field.lineno
    comments = [lines[end - 1][field.end_col_offset :].partition("#")[2].strip()]
    while end < len(lines) and lines[end].startswith("    #"):  # it goes on below
        comments.append(lines[end].strip(" #"))
        end += 1
    default = ast.unparse(field.value) if field.value else ""
    default = {
        "field(default_factory=dict)": "{}",
        "field(default_factory=NoOptions)": "{}",
        "True": "on",
        "False": "off",
        "''": "",
    }.get(default, default)
    name = field.target.id if isinstance(field.target, ast.Name) else ""
    kind = ast.unparse(field.annotation).replace("Environments", "EnvConfig")  # or a list of several
    return Option(name, kind, default.strip("'"), " ".join(comments).strip())


def options_page() -> str:
    """Every option of a run, with default, values and the comment that stands beside it in the code."""
    text = [
        "# Options of a run",
        "",
        "Every option can stand in a YAML file (`--config FILE`, nested) or on the command line, as",
        "`section.option=value`; values are YAML, and `on` and `off` are booleans. `python train.py --show-config …`",
        "prints them all as a run would have them. This page is made from the code of the options; defaults are",
        "those of the code, below what `method` and `configs/default.yaml` say.",
    ]
    for section, summary, options in sections():
        title = f"`{section}`" if section else "The run itself"
        text += ["", f"## {title} {{ #{section.replace('.', '-') or 'run'} }}", "", _plain(summary), ""]
        text += ["| option | default | values | |", "| --- | --- | --- | --- |"]
        for option in options:
            name = f"{section}.{option.name}" if section else option.name
            default = f"`{option.default}`" if option.default else "empty"
            text.append(f"| `{name}` | {default} | {_values(option.kind)} | {_plain(option.comment)} |")
    return "\n".join(text) + "\n"


def _values(kind: str) -> str:
    """What an option may be, in words.

    >>> _values("Literal['rl', 'sft']"), _values("Switch"), _values("Mapping[str, Share]")
    ('`rl`, `sft`', '`on`, `off`', 'a section of your own keys')
    >>> _values("Share"), _values("Annotated[Integer, Field(ge=0, le=2 ** 32 - 1)]")
    ('a number from 0 to 1', 'a whole number from 0 to 2^32 - 1')
    """
    kind = _aliases().get(kind, kind)
    if literal := re.search(r"Literal\[(.*?)\]", kind):
        return ", ".join(f"`{value}`" for value in ast.literal_eval(f"[{literal[1]}]"))
    if kind.startswith("Mapping["):
        return "a section of your own keys"
    if listed := re.match(r"(?:Annotated\[)?tuple\[(\w+)", kind):
        return f"a list, each {_values(listed[1])}"
    words = {"Switch": "`on`, `off`", "Integer": "a whole number", "Number": "a number", "Text": "text"}
    if not kind.startswith("Annotated["):
        return words.get(kind, f"`{kind}`")
    bounds = [(name, bound.replace(" ** ", "^")) for name, bound in re.findall(r"([gl][te])=([^,)]+)", kind)]
    text = [f"{_BOUNDS[name]} {bound}" for name, bound in bounds if bound != "10^9"]
    return f"{words[kind[10:].partition(',')[0]]} {' '.join(text)}"


_BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}


@functools.cache
def _aliases() -> dict[str, str]:
    """The names that settings.py gives to types with a range."""
    tree = ast.parse((SOURCE / "roleagent" / "config" / "settings.py").read_text("utf-8"))
    return {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign)}


def _plain(text: str) -> str:
    return text.replace("``", "`").replace("|", r"\|").replace("<", "&lt;")
