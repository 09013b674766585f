"""Whether what lies in build/ was built from the sources beside it."""

import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
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
    build = project.root / "build"
    return tuple(
        name for name, digest in digests(project).items() if _built_from(build / name) not in (None, digest)
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


def digests(project: Project) -> dict[str, str]:
    """variant -> the digest that nix/variant.nix makes of all that it is made of, and puts into its id."""
    config = project.require_config()
    package = f"torch-ext/{config.general.name.replace('-', '_')}/"
    files = [file for file in project.visible_files() if file.startswith(package)]
    files.sort(key=lambda file: file.split("/"))
    digest_of = cache(lambda file: _hash(project.root / file))  # the variants share most files
    found = {}
    for variant in chosen(select(config, Matrix.load())):
        noarch = isinstance(variant.variant, NoarchVariant)
        sources = [*files, *([] if noarch else _compiled(config, variant))]
        content = [
            variant.name,
            digest_of(CONFIG_NAME),
            [[file, digest_of(file)] for file in sources],
        ]
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        found[variant.name] = hashlib.sha256(text.encode()).hexdigest()[:12]
    return found


def _built_from(variant: Path) -> str | None:
    """The digest in the id of a built variant; None where there is none, or not in the form of ours."""
    try:
        identity = metadata.load(variant / metadata.FILE_NAME).id
    except (OSError, metadata.MetadataError):
        return None
    match = re.fullmatch(rf"_\w+_([0-9a-f]{{12}})_{variant.name.replace('-', '_')}", identity)
    return None if match is None else match[1]


def _compiled(config: Config, variant: Chosen) -> Iterator[str]:
    used = {kernel.id for kernel in variant.kernels}
    sections = sorted(
        (kernel for kernel in config.kernels if kernel.id in used), key=lambda kernel: kernel.id
    )
    written = [] if isinstance(config.framework, TorchNoarch) else [*config.framework.src]
    for path in [*written, *(path for section in sections for path in section.src)]:
        yield inside(path) or path


def _hash(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
