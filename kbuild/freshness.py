"""Whether what lies in build/ was built from the sources beside it."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from kbuild import metadata
from kbuild.config.model import Config, TorchNoarch
from kbuild.project import Project
from kbuild.sources.files import CONFIG_NAME, inside
from kbuild.variants import Chosen, Matrix, NoarchVariant, chosen, select

_NAMED = 3


def stale(project: Project) -> tuple[str, ...]:
    """Variants in build/ that `kbuild build` would make from other sources than they were made from.

    Nothing is said of what this project does not build, and of what another builder built.
    """
    config = project.require_config()
    files = project.visible_files()
    return tuple(
        variant.name
        for variant in chosen(select(config, Matrix.load()))
        if _is_stale(project.root, config, files, variant)
    )


def note(project: Project, variant: str | None = None) -> str | None:
    """A line that names what is stale in build/, or says it of one variant; None where nothing is."""
    names = [name for name in stale(project) if variant in (None, name)]
    if not names:
        return None
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"the sources are not those that {', '.join(names[:_NAMED])}{more} was built from: run `kbuild build`"
    )


def _is_stale(root: Path, config: Config, files: tuple[str, ...], variant: Chosen) -> bool:
    try:
        built = metadata.load(root / "build" / variant.name / metadata.FILE_NAME).id
    except (OSError, metadata.MetadataError):
        return False
    # NB: the form that nix/variant.nix gives it.
    match = re.fullmatch(rf"_\w+_([0-9a-f]{{12}})_{variant.name.replace('-', '_')}", built)
    return match is not None and match[1] != _digest(root, config, files, variant)


def _digest(root: Path, config: Config, files: tuple[str, ...], variant: Chosen) -> str:
    """The digest that nix/variant.nix makes of all that a variant is made of."""
    package = f"torch-ext/{config.general.name.replace('-', '_')}/"
    sources = sorted((file for file in files if file.startswith(package)), key=lambda file: file.split("/"))
    if not isinstance(variant.variant, NoarchVariant):
        sources += _compiled(config, variant)
    content = [variant.name, _hash(root, CONFIG_NAME), [[file, _hash(root, file)] for file in sources]]
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _compiled(config: Config, variant: Chosen) -> Iterator[str]:
    used = {kernel.id for kernel in variant.kernels}
    sections = sorted(
        (kernel for kernel in config.kernels if kernel.id in used), key=lambda kernel: kernel.id
    )
    written = [] if isinstance(config.framework, TorchNoarch) else [*config.framework.src]
    for path in [*written, *(path for section in sections for path in section.src)]:
        yield inside(path) or path


def _hash(root: Path, file: str) -> str | None:
    path = root / file
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
