"""Loading a project's own build as its users load it: by `get_kernel`, through LOCAL_KERNELS.

`kernels` reads LOCAL_KERNELS as `repo=path` pairs joined by colons; a path may be a project, its build folder or one
variant, and of several variants it takes the one that fits the machine (kernels/load.py and kernels/resolver.py, 0.17).
"""

import os
from pathlib import Path
from typing import Any

from kbuild import machine, variants
from kbuild.errors import FindingsError, MachineError, UsageError


def place_to_load(root: Path, variant: str | None) -> Path:
    """What LOCAL_KERNELS is to name: the build folder, or the variant of it that was asked for.

    Raises UsageError where nothing is built, that variant is not, or LOCAL_KERNELS cannot name the place.
    """
    build = root / "build"
    built = sorted(path.name for path in build.glob("*") if (path / "metadata.json").is_file())
    if not built:
        raise UsageError(f"nothing is built in {build}", hint="run `kbuild build` first")
    if variant is not None and variant not in built:
        raise UsageError(f"{variant!r} is not built; there are: {', '.join(built)}")
    place = build if variant is None else build / variant
    if ":" in str(place):
        raise UsageError(
            f"{place} has a colon in its path, which LOCAL_KERNELS cannot name", hint="move the project"
        )
    return place


def require_fit(variant: str | None, here: machine.InstalledTorch, *, does: str) -> None:
    """Raises MachineError where this PyTorch cannot load the variant asked for; `does` is what it was wanted for."""
    if variant is not None and not variants.fits(
        variants.parse(variant), torch=here.torch, cuda=here.cuda, arch=os.uname().machine
    ):
        raise MachineError(
            f"{variant} does not load in this machine's {here}",
            hint=f"{does} it where such a PyTorch is; without --variant the build that fits here is taken",
        )


def raise_for_failure(
    report: dict[str, Any], here: machine.InstalledTorch, root: Path, *, needed: str
) -> None:
    """What the Python that was to load the build reports instead of results, raised; `needed` installs what it lacks.

    MachineError for `missing` packages, an `old` kernels and an `unfit` build, FindingsError for a `broken` one.
    """
    match report:
        case {"missing": missing}:
            raise MachineError(f"{here.python} has PyTorch but no {' and no '.join(missing)}", hint=needed)
        case {"old": old}:
            raise MachineError(
                f"{here.python} has kernels {old}, and loading a build needs 0.17 or later",
                hint="pip install --upgrade 'kernels>=0.17'",
            )
        case {"unfit": trace}:
            raise MachineError(
                f"no built variant fits this machine's {here}:\n{trace.strip()}",
                hint=f"kbuild build {root} builds what fits, and kbuild variants {root} says what it can be built for",
            )
        case {"broken": text}:
            raise FindingsError(f"the built kernel cannot be loaded: {text}")
