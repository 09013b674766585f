"""Which Python packages a kernel may depend on, and what each is imported as."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Self

from kbuild.config.model import Backend
from kbuild.resources import data_json


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonDepends:
    """Name in `build.toml` -> name of the module, None where there is none.

    `brings` are further modules that a package's own requirements install.
    """

    general: Mapping[str, str | None]
    backends: Mapping[Backend, Mapping[str, str | None]]
    brings: Mapping[str, tuple[str, ...]]

    @classmethod
    @cache
    def load(cls) -> Self:
        raw = data_json("python_depends.json")
        return cls(
            general=raw["general"],
            backends={Backend(name): packages for name, packages in raw["backends"].items()},
            brings={name: tuple(modules) for name, modules in raw["brings"].items()},
        )

    def allowed(self, backend: Backend | None) -> Mapping[str, str | None]:
        """What `general` (None) or `general.<backend>` may list."""
        return self.general if backend is None else self.backends.get(backend, {})

    def home(self, package: str) -> str | None:
        """The table that may list the package."""
        if package in self.general:
            return "general"
        return next(
            (f"general.{name}" for name, packages in self.backends.items() if package in packages), None
        )

    def module(self, package: str) -> str | None:
        """What Python imports the package as."""
        for packages in (self.general, *self.backends.values()):
            if package in packages:
                return packages[package]
        return None

    def modules(self, package: str) -> tuple[str, ...]:
        """Everything that can be imported once the package is installed, as far as kernels use it."""
        module = self.module(package)
        return (*(() if module is None else (module,)), *self.brings.get(package, ()))
