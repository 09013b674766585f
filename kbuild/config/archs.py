"""Which compute capabilities each CUDA toolkit knows, from `data/cuda_archs.json`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Self

from kbuild.config.model import Capability, Version
from kbuild.resources import data_json


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaArchs:
    """`known` holds capabilities without PTX marks; `default` is what a kernel gets that declares none."""

    known: Mapping[Version, frozenset[str]]
    default: Mapping[Version, tuple[Capability, ...]]

    @classmethod
    @cache
    def load(cls) -> Self:
        """Raises ValueError where a default names what its toolkit does not know."""
        raw = data_json("cuda_archs.json")
        archs = cls(
            known={Version.parse(name): frozenset(names) for name, names in raw["toolkits"].items()},
            default={
                Version.parse(name): tuple(Capability.parse(text) for text in names)
                for name, names in raw["default"].items()
            },
        )
        for toolkit, capabilities in archs.default.items():
            if archs.effective(capabilities, toolkit) != capabilities:
                raise ValueError(f"cuda_archs.json: a default of {toolkit} is not known to that toolkit")
        return archs

    def toolkits_knowing(self, capability: Capability) -> tuple[Version, ...]:
        """The toolkits that compile for it, oldest first."""
        return tuple(sorted(toolkit for toolkit, names in self.known.items() if capability.arch in names))

    def effective(self, declared: Iterable[Capability], toolkit: Version) -> tuple[Capability, ...]:
        """The declared capabilities that the toolkit knows, in their order, without repeats.

        Nothing declared means the default of the toolkit. An empty result for a non-empty declaration is the
        caller's error to report: there is no fall-back.
        """
        declared = tuple(dict.fromkeys(declared))
        if not declared:
            return self.default[toolkit]
        return tuple(capability for capability in declared if capability.arch in self.known[toolkit])

    def all_known(self) -> tuple[Capability, ...]:
        """Every capability of every toolkit, in numeric order."""
        names = frozenset[str]().union(*self.known.values())
        return tuple(
            sorted((Capability.parse(name) for name in names), key=lambda c: (c.major, c.minor, c.suffix))
        )
