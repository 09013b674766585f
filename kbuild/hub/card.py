"""The model card: the project's CARD.md filled in, or one made from what is published.

CARD.md is a template in Jinja's language with the names of the public kernel-builder: `repo_id`, `version`,
`license`, `functions`, `layers`, `has_benchmark`, `upstream`, `source`. Ours besides: `name`, `variants` (rows of
the table), `builders` and `commits` (what they were built with and from), `metadata` (of the first variant).
"""

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kbuild.errors import FindingsError
from kbuild.hub.plan import RepoType
from kbuild.hub.template import HINT, TemplateProblemError, fill
from kbuild.hub.tree import LocalBuild
from kbuild.metadata import Metadata
from kbuild.variants import NoarchVariant, StableAbiVariant, TorchVariant, TvmFfiVariant, parse

TEMPLATE_NAME = "CARD.md"

_GENERATED = """\
---
library_name: kernels
license: {{ license }}
tags:
- kernel
---

# {{ name }}

A compute kernel, loaded with the `kernels` library (`pip install kernels`).

```python
from kernels import get_kernel

{% if new_loaders %}
# Loading a kernel runs its code on your machine. Unless the Hub shows its publisher as trusted, that takes
# trust_remote_code=True: say so once you have looked at what you load.
{{ module }} = get_kernel("{{ repo_id }}", version={{ version }}, trust_remote_code=True)
{% else %}
# Loading a kernel runs its code on your machine: look at what you load.
{{ module }} = get_kernel("{{ repo_id }}", version={{ version }})
{% endif %}
```

This is a {{ repo_type }} repository: {{ loaders }}.
{% if functions %}

## Functions

{% for function in functions %}
- `{{ function }}`
{% endfor %}
{% endif %}
{% if layers %}

## Layers

{% for layer in layers %}
- `{{ layer }}`
{% endfor %}
{% endif %}

## Variants

| variant | PyTorch | compute | platform | architectures |
| --- | --- | --- | --- | --- |
{% for row in variants %}
| `{{ row.name }}` | {{ row.framework }} | {{ row.compute }} | {{ row.platform }} | {{ row.archs }} |
{% endfor %}

## Provenance

{% for builder in builders %}
- builder: {{ builder }}
{% endfor %}
{% for commit in commits %}
- commit: {{ commit.name }}{% if commits | length > 1 %} ({{ commit.variants | join(', ') }}){% endif %}

{% endfor %}
{% if source %}
- source: {{ source }}
{% endif %}
{% if upstream %}
- upstream: {{ upstream }}
{% endif %}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variant in the table, in words."""

    name: str
    framework: str
    compute: str
    platform: str
    archs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A commit in words, and the variants that were built from it."""

    name: str
    variants: tuple[str, ...]


def render(
    project: Path,
    build: LocalBuild,
    *,
    repo_id: str,
    repo_type: RepoType,
    others: Mapping[str, Metadata | None] = MappingProxyType({}),
) -> str:
    """The card's text. `others` are variants that are on the Hub already and stay there; None: nothing known of one.

    Raises FindingsError where the project's CARD.md is no template.
    """
    metadata = build.metadata
    variants = dict(sorted({**others, **{v.name: v.metadata for v in build.variants}}.items()))
    functions, layers = exports(project / "torch-ext" / metadata.python_name)
    template = project / TEMPLATE_NAME
    values: dict[str, object] = {
        "repo_id": repo_id,
        "repo_type": str(repo_type),
        "loaders": repo_type.loaders,
        "new_loaders": repo_type is RepoType.KERNEL,
        "name": metadata.name,
        "module": metadata.python_name,
        "version": metadata.version,
        "license": _license(metadata.license),
        "upstream": metadata.upstream,
        "source": metadata.source,
        "metadata": metadata,
        "functions": functions,
        "layers": layers,
        "has_benchmark": (project / "benchmarks" / "benchmark.py").is_file(),
        "variants": [_row(name, known) for name, known in variants.items()],
        "builders": _builders(variants.values()),
        "commits": _commits(variants),
    }
    try:
        return fill(_template(template), values)
    except TemplateProblemError as problem:
        place = template if problem.line is None else f"{template}:{problem.line}"
        raise FindingsError(f"{place}: {problem.message}", hint=HINT) from problem


def exports(package: Path) -> tuple[list[str], list[str]]:
    """Functions and layers that a package lists in its `__all__`; read, never run."""
    names = _all_of(package / "__init__.py")
    layers = next(
        (path for path in (package / "layers" / "__init__.py", package / "layers.py") if path.is_file()), None
    )
    if "layers" not in names or layers is None:
        return [name for name in names if name != "layers"], []
    classes = [node.name for node in _parsed(layers).body if isinstance(node, ast.ClassDef)]
    return [name for name in names if name != "layers"], classes or _all_of(layers)


def _template(path: Path) -> str:
    if not path.is_file():
        if path.exists() or path.is_symlink():
            raise FindingsError(
                f"{path} is not a file", hint="Make it one, or delete it: a card is made then."
            )
        return _GENERATED
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FindingsError(f"{path} is not UTF-8 (byte {error.start})") from error


def _builders(known: Iterable[Metadata | None]) -> list[str]:
    provenances = [metadata.provenance for metadata in known if metadata is not None]
    return sorted({p.kernel_builder.version for p in provenances if p is not None}) or ["not recorded"]


def _commits(variants: Mapping[str, Metadata | None]) -> list[Origin]:
    origins: dict[str, list[str]] = {}
    for name, metadata in variants.items():
        git = None if metadata is None or metadata.provenance is None else metadata.provenance.kernel
        changes = ", with changes" if git is not None and git.dirty else ""
        origins.setdefault("not recorded" if git is None else f"`{git.commit}`{changes}", []).append(name)
    return [Origin(name=name, variants=tuple(built)) for name, built in origins.items()]


def _all_of(module: Path) -> list[str]:
    for node in _parsed(module).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() | ast.Tuple() as value):
                elements = [element.value for element in value.elts if isinstance(element, ast.Constant)]
                return [element for element in elements if isinstance(element, str)]
    return []


def _parsed(module: Path) -> ast.Module:
    try:
        # NB: reading a pipe would wait for ever.
        return ast.parse(module.read_bytes() if module.is_file() else b"")
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        # The card can do without; a package that does not parse is found elsewhere.
        return ast.Module(body=[], type_ignores=[])


def _license(text: str) -> str:
    # Plain words are the Hub's own names for licenses; anything else must survive YAML.
    return (
        text.lower()
        if re.fullmatch(r"[\w.+-]+", text)
        else '"' + text.replace("\\", "").replace('"', "'") + '"'
    )


def _row(name: str, metadata: Metadata | None) -> Row:
    archs = "not recorded" if metadata is None else ", ".join(metadata.backend.archs or ())
    row = Row(name=name, framework="", compute="", platform="", archs=archs)
    try:
        variant = parse(name)
    except ValueError:
        return row
    match variant:
        case TorchVariant():
            framework = str(variant.torch)
        case StableAbiVariant():
            framework = f"{variant.torch} and later"
        case TvmFfiVariant():
            framework = f"tvm-ffi {variant.tvm_ffi}"
        case NoarchVariant():
            backend = "any" if variant.backend is None else str(variant.backend)
            return Row(name=name, framework="any", compute=backend, platform="any", archs=row.archs)
    return Row(
        name=name,
        framework=framework,
        compute=str(variant.compute),
        platform=f"{variant.arch}-{variant.os}",
        archs=row.archs,
    )
