"""Who may do what on a loopback Hub."""

from dataclasses import dataclass
from enum import StrEnum

RESERVED_NAMESPACES = frozenset({"api", "lfs", "models", "kernels", "datasets", "spaces"})


class Role(StrEnum):
    """What a token is good for."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody with a token. Writes to the own namespace and to those of `orgs`, where the role allows it."""

    name: str
    token: str
    orgs: tuple[str, ...] = ()
    role: Role = Role.WRITE

    def owns(self, namespace: str) -> bool:
        return namespace == self.name or namespace in self.orgs


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One Hub. `page_size` and `part_size` are small in tests, to see clients page and send parts."""

    users: tuple[User, ...] = ()
    orgs: tuple[str, ...] = ()
    trusted_orgs: frozenset[str] = frozenset()
    allow_kernels: bool = True
    page_size: int = 1000
    part_size: int | None = None

    def user_of(self, token: str) -> User | None:
        return next((user for user in self.users if user.token == token), None)

    def has_namespace(self, name: str) -> bool:
        return name in self.orgs or any(user.name == name for user in self.users)
