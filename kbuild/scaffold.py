"""A complete kernel project from templates: what `kbuild init` writes. The scheme is in `data/templates/README.md`."""

import keyword
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kbuild.config.schema import NAME, REPO_ID, REPO_ID_RULE
from kbuild.errors import UsageError
from kbuild.resources import data_files


class Op(StrEnum):
    """The operation that a new project computes, to be replaced by the author's."""

    ELEMENTWISE = "elementwise"
    RMSNORM = "rmsnorm"


class Backend(StrEnum):
    """The backends that there are templates for."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    function: str
    layer: str
    description: str


_WORDS = {
    Op.ELEMENTWISE: _Words(
        function="silu", layer="SiLU", description="SiLU, x / (1 + exp(-x)), element by element."
    ),
    Op.RMSNORM: _Words(
        function="rms_norm", layer="RMSNorm", description="RMSNorm over the last dimension, in one pass."
    ),
}

# Of a function's name: it is in the names of files and of steps of a build.
_LONGEST = 64

# What a project of Python alone goes without.
_COMPILED = (".cpp", ".cu", ".cuh", ".h")

_CPP_KEYWORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class
    compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline
    int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
    register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile
    wchar_t while xor xor_eq
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """What a new project is to be; without `function` its function is called what `op` is called in PyTorch.

    One that is `noarch` is Python alone, with a Triton kernel; no `stable_abi` goes with it.
    """

    org: str
    name: str
    backends: tuple[Backend, ...]
    op: Op
    stable_abi: bool
    noarch: bool = False
    function: str | None = None

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def own_name(self) -> str | None:
        """The name of a function that is not the one which `op` stands for, whose formula it has at first."""
        return None if self.function == _WORDS[self.op].function else self.function

    @property
    def layer(self) -> str:
        """The class that is a layer: `FusedGate` for the function `fused_gate`."""
        if self.own_name is None:
            return _WORDS[self.op].layer
        return "".join(word[0].upper() + word[1:] for word in self.own_name.split("_"))

    @property
    def description(self) -> str:
        """What it computes; of a function with a name of its own, that the formula is still to be replaced."""
        computed = _WORDS[self.op].description
        if self.own_name is None:
            return computed
        return f"The formula of the template, still to be replaced: {computed}"


def parse_repository(text: str) -> tuple[str, str]:
    """Organisation and kernel name of `ORG/NAME`. Raises UsageError that says what a name must be, and proposes one."""
    org, slash, name = text.partition("/")
    if not slash or not org or not name or "/" in name:
        last = text.strip("/").rpartition("/")[2]
        raise UsageError(
            f"{text!r} is not ORG/NAME",
            hint=f"name the Hub user or organisation and the kernel, for example my-org/{_proposal(last)}",
        )
    if re.search(REPO_ID.pattern or "", f"{org}/name") is None:
        raise UsageError(f"{org!r} cannot be a Hub organisation: {REPO_ID_RULE}")
    if re.search(NAME.pattern or "", name) is None:
        raise UsageError(f"{name!r} is not {NAME.what}", hint=f"for example {org}/{_proposal(name)}")
    if re.search(REPO_ID.pattern or "", text) is None:
        raise UsageError(
            f"{name!r} cannot be a Hub repository: {REPO_ID_RULE}",
            hint=f"for example {org}/{_proposal(name)}",
        )
    module = name.replace("-", "_")
    taken = (
        "which is a word of Python itself"
        if keyword.iskeyword(module)
        else "which its own files import"
        if module in _imported()
        else None
    )
    if taken is not None:
        raise UsageError(
            f"{name!r} would be the Python package {module!r}, {taken}",
            hint=f"for example {org}/{name}-kernel",
        )
    return org, name


def parse_function(text: str, op: Op) -> str:
    """A name for the function of a project that starts from `op`.

    Raises UsageError where it is no identifier of both Python and C++, or a word that the templates use already.
    """
    reason = _unfit(text, op)
    if reason is None:
        return text
    near = _proposal(text).replace("-", "_")
    proposal = near if _unfit(near, op) is None else f"fused_{near}"
    raise UsageError(f"{text!r} cannot name {reason}", hint=f"for example --function {proposal}")


def _unfit(text: str, op: Op) -> str | None:
    """Why a function cannot have this name."""
    if re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", text) is None:
        return "a function: lower-case letters, digits and single '_' between them, first a letter"
    if len(text) > _LONGEST:
        return f"a function: {len(text)} characters, and {_LONGEST} are the most"
    # NB: its layer has the word in capitals, and None, True and False are words too.
    for language, words in (("Python", {word.lower() for word in keyword.kwlist}), ("C++", _CPP_KEYWORDS)):
        if text in words:
            return f"a function: it is a word of {language} itself"
    if text.startswith("benchmark"):
        return "the function: publishing takes benchmarks/benchmark*.py for what `kernels benchmark` runs"
    if text in _words_in_use(op):
        return "the function: the project uses this word for something else"
    return None


def _words_in_use(op: Op) -> frozenset[str]:
    """The words of the templates' code and paths, but those that belong to something, as in `torch.sigmoid`.

    Those behind a `_` are among them: the templates put one before the function too.
    """
    text = "\n".join(
        f"{path}\n{source.read_text(encoding='utf-8')}"
        for folder in (*_folders(op), _triton(op))
        for path, source in data_files(folder)
        if not path.endswith(".md")
    )
    text = re.sub(r"@\{\w+\}|@%.*%@", "", text)
    return frozenset(re.findall(r"(?<![\w.:])_?([a-z]\w*)", text))


def _imported() -> frozenset[str]:
    """The packages that a project of any kind imports: one of the same name would import itself."""
    text = "\n".join(
        source.read_text(encoding="utf-8") for path, source in data_files("templates") if path.endswith(".py")
    )
    return frozenset(re.findall(r"(?m)^ *(?:import|from) (\w+)", text))


def _folders(op: Op) -> tuple[str, str]:
    return "templates/project", f"templates/{op}"


def _triton(op: Op) -> str:
    return f"templates/triton/{op}"


def _proposal(text: str) -> str:
    """A valid name near `text`, and not too long for a function."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text).lower()
    name = re.sub(r"[^a-z0-9]+", "-", words).lstrip("-0123456789")[:_LONGEST].rstrip("-")
    return name if re.search(NAME.pattern or "", name) else "my-kernel"


def render(scaffold: Scaffold) -> dict[str, str]:
    """Every file of the project: path relative to its root -> text."""
    from jinja2 import Environment, StrictUndefined

    # NB: templates are kbuild's own files and make source code, so nothing is to be escaped.
    environment = Environment(
        variable_start_string="@{",
        variable_end_string="}",
        block_start_string="@%",
        block_end_string="%@",
        comment_start_string="@#",
        comment_end_string="#@",
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701
    )
    words = _WORDS[scaffold.op]
    values: Mapping[str, object] = {
        "org": scaffold.org,
        "name": scaffold.name,
        "module": scaffold.module,
        "function": scaffold.function or words.function,
        "layer": scaffold.layer,
        "description": scaffold.description,
        "renamed": scaffold.own_name is not None,
        "backends": ", ".join(f'"{backend}"' for backend in scaffold.backends),
        "cuda": Backend.CUDA in scaffold.backends,
        "cpu": Backend.CPU in scaffold.backends,
        "stable": scaffold.stable_abi,
        "noarch": scaffold.noarch,
    }
    files: dict[str, str] = {}
    for folder in (*_folders(scaffold.op), *([_triton(scaffold.op)] if scaffold.noarch else [])):
        for name, source in data_files(folder):
            if scaffold.noarch and name.endswith(_COMPILED):
                continue
            path = environment.from_string(name).render(values)
            text = environment.from_string(source.read_text(encoding="utf-8")).render(values)
            if text.strip():
                files[path] = text.rstrip("\n") + "\n"
    return files


def write(files: Mapping[str, str], target: Path) -> None:
    """Write a project to `target`, which must not exist or be a folder with nothing in it but `.git`.

    All of it appears, or nothing. Raises UsageError where something is there already.
    """
    fills = target.is_dir()
    if target.is_file() or (fills and any(path.name != ".git" for path in target.iterdir())):
        raise UsageError(
            f"{target} exists and is not an empty folder: nothing was written",
            hint="remove it, or name another folder with --dest",
        )
    # NB: a folder that is there stays: a shell may stand in it, and its parent may be another's.
    final = target.resolve()
    place = final if fills else final.parent
    draft = place / f".{final.name}-{os.getpid()}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
    except OSError as error:
        raise UsageError(f"cannot write to {place}: {error.strerror}") from error
    moved: list[Path] = []
    try:
        for path, text in files.items():
            file = draft / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        if not fills:
            draft.rename(final)
            return
        moved = [final / entry.name for entry in draft.iterdir()]
        for entry in moved:
            (draft / entry.name).rename(entry)
        draft.rmdir()
    except BaseException:
        for left in (draft, *moved):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        raise
