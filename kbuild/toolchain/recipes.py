"""Which wheels the lock pins and what is kept of each; the refresh command turns this into hashes."""

from dataclasses import dataclass

from kbuild.resources import data_json

# NVIDIA's meta-package `cuda-toolkit` names a consistent set of component versions for each patch release.
CUDA_RELEASES = {"13.0": "13.0.2", "13.2": "13.2.2"}

_CU13 = "nvidia/cu13"
_EXTRAS = "cccl,crt,cublas,cudart,curand,cusolver,cusparse,nvcc,nvjitlink,nvvm"

# What a component contributes to compiling and linking. cicc carries its own copy of libnvvm, so the library
# stays behind; so do the math libraries, which a kernel reaches through torch. Link-time optimisation of device
# code (-dlto) does not work with the tools of the wheels.
_COMPONENTS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "nvcc": ("nvidia-cuda-nvcc", ("bin/**", "include/**"), ("bin/*",)),
    "nvvm": ("nvidia-nvvm", ("nvvm/**",), ("nvvm/bin/*",)),
    "crt": ("nvidia-cuda-crt", ("include/**",), ()),
    "runtime": ("nvidia-cuda-runtime", ("include/**", "lib/libcuda*"), ()),
    "cccl": ("nvidia-cuda-cccl", ("include/**",), ()),
    "cublas": ("nvidia-cublas", ("include/**",), ()),
    "cusparse": ("nvidia-cusparse", ("include/**",), ()),
    "cusolver": ("nvidia-cusolver", ("include/**",), ()),
    "curand": ("nvidia-curand", ("include/**",), ()),
    "nvjitlink": ("nvidia-nvjitlink", ("include/**",), ()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A tree before it is pinned. pip resolves `requirements`; `meta` says that dependencies count as well."""

    key: str
    project: str
    requirements: tuple[str, ...]
    meta: bool
    store_suffix: str
    keep: tuple[str, ...]
    strip: str
    executable: tuple[str, ...]

    def store_name(self, version: str) -> str:
        return f"{self.project}-{version}{self.store_suffix}"


_OF_THE_RELEASE = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-nvjitlink")


def recipes() -> tuple[Recipe, ...]:
    """One per tree that the matrix uses, in the matrix's order."""
    matrix = data_json("matrix.json")
    torches = [_torch(minor, entry["tree"]) for minor, entry in matrix["torch"].items()]
    cudas = [
        _cuda(toolkit["cuda"], key)
        for toolkit in matrix["toolkits"].values()
        for key in toolkit.get("trees", ())
    ]
    return (*torches, *cudas)


def _torch(minor: str, key: str) -> Recipe:
    return Recipe(
        key=key,
        project="torch",
        requirements=(f"torch=={minor}.*",),
        meta=False,
        store_suffix="-headers",
        keep=("torch/include/**",),
        strip="torch",
        executable=(),
    )


def _cuda(cuda: str, key: str) -> Recipe:
    component = key.removeprefix(f"cuda-{cuda}-")
    project, keep, executable = _COMPONENTS[component]
    return Recipe(
        key=key,
        project=project,
        # What the meta-package leaves open would come from the newest release of the same major version.
        requirements=(
            f"cuda-toolkit[{_EXTRAS}]=={CUDA_RELEASES[cuda]}",
            *(f"{project}=={cuda}.*" for project in _OF_THE_RELEASE),
        ),
        meta=True,
        store_suffix="",
        keep=tuple(f"{_CU13}/{glob}" for glob in keep),
        strip=_CU13,
        executable=executable,
    )
