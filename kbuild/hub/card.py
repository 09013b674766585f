"""The model card: the project's CARD.md filled in, or one made from what is published.

CARD.md is a Jinja template with the names of the public kernel-builder: `repo_id`, `version`, `license`, `functions`,
`layers`, `has_benchmark`, `upstream`, `source`. Ours besides: `name`, `variants` (rows of the table), `metadata`.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment

from kbuild.errors import FindingsError
from kbuild.hub.plan import RepoType
from kbuild.hub.tree import LocalBuild
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

{% if metadata.provenance %}
- builder: {{ metadata.provenance.kernel_builder.version }}
{% if metadata.provenance.kernel %}
- commit: `{{ metadata.provenance.kernel.commit }}`{% if metadata.provenance.kernel.dirty %}, with changes{% endif %}

{% endif %}
{% else %}
- builder and commit: not recorded
{% endif %}
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


def render(
    project: Path, build: LocalBuild, *, repo_id: str, repo_type: RepoType, others: Iterable[str] = ()
) -> str:
    """The card's text. `others` are variants that are on the Hub already and stay there.

    Raises FindingsError where the project's CARD.md is no template.
    """
    metadata = build.metadata
    archs = {variant.name: variant.metadata.backend.archs or () for variant in build.variants}
    functions, layers = exports(project / "torch-ext" / metadata.python_name)
    template = project / TEMPLATE_NAME
    try:
        text = template.read_text(encoding="utf-8") if template.is_file() else _GENERATED
        # NB: a template is somebody's file, so it gets no Python.
        environment = SandboxedEnvironment(trim_blocks=True, keep_trailing_newline=True)
        return environment.from_string(text).render(
            repo_id=repo_id,
            repo_type=str(repo_type),
            loaders=repo_type.loaders,
            new_loaders=repo_type is RepoType.KERNEL,
            name=metadata.name,
            module=metadata.python_name,
            version=metadata.version,
            license=_license(metadata.license),
            upstream=metadata.upstream,
            source=metadata.source,
            metadata=metadata,
            functions=functions,
            layers=layers,
            has_benchmark=(project / "benchmarks" / "benchmark.py").is_file(),
            variants=[_row(name, archs.get(name, ())) for name in sorted({*archs, *others})],
        )
    except UnicodeDecodeError as error:
        raise FindingsError(f"{template} is not UTF-8 (byte {error.start})") from error
    except TemplateSyntaxError as error:
        raise FindingsError(f"{template}:{error.lineno}: {error.message}", hint=_TEMPLATE_HINT) from error
    except TemplateError as error:
        raise FindingsError(f"{template}: {error.message}", hint=_TEMPLATE_HINT) from error


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


_TEMPLATE_HINT = "Write {% raw %} … {% endraw %} around text with double braces that is none of Jinja's."


def _all_of(module: Path) -> list[str]:
    for node in _parsed(module).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() | ast.Tuple() as value):
                elements = [element.value for element in value.elts if isinstance(element, ast.Constant)]
                return [element for element in elements if isinstance(element, str)]
    return []


def _parsed(module: Path) -> ast.Module:
    try:
        return ast.parse(module.read_bytes())
    except (OSError, SyntaxError, ValueError):
        # The card can do without; a package that does not parse is found elsewhere.
        return ast.Module(body=[], type_ignores=[])


def _license(text: str) -> str:
    # Plain words are the Hub's own names for licenses; anything else must survive YAML.
    return (
        text.lower()
        if re.fullmatch(r"[\w.+-]+", text)
        else '"' + text.replace("\\", "").replace('"', "'") + '"'
    )


def _row(name: str, archs: Iterable[str]) -> Row:
    row = Row(name=name, framework="", compute="", platform="", archs=", ".join(archs))
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
