"""The HTTP face of the loopback Hub: one ASGI application with a dispatcher of its own.

NB: dispatch works on the undecoded path: clients quote `refs/pr/1` inside one segment, where a router that
decodes first would see three.
"""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, quote, unquote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.types import Receive, Scope, Send

from kbuild.localhub.blobs import Blobs
from kbuild.localhub.config import RESERVED_NAMESPACES, Config, Role, User
from kbuild.localhub.gitids import File, blob_oid, pointer, tree_oids
from kbuild.localhub.store import (
    Change,
    Commit,
    Kind,
    Message,
    Put,
    RefusalError,
    Remove,
    Repo,
    Store,
    check_path,
)

_LFS_FROM = 10 * 2**20
_IN_MEMORY = 2**20
_ADDRESS_LIFETIME = 3600
_API_KINDS = {"models": Kind.MODEL, "kernels": Kind.KERNEL}
_GITATTRIBUTES = b"*.so filter=lfs diff=lfs merge=lfs -text\n*.bin filter=lfs diff=lfs merge=lfs -text\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One request with its body received; `parts` are the decoded segments of the path."""

    method: str
    parts: tuple[str, ...]
    raw_path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    base: str
    user: User | None
    body: IO[bytes]

    def json(self) -> dict[str, Any]:
        try:
            document = json.loads(self.body.read() or b"{}")
        except ValueError:
            raise RefusalError(400, "The request body is not JSON") from None
        if not isinstance(document, dict):
            raise RefusalError(400, "The request body is not a JSON object")
        return document


class App:
    """The application; state lies below `root`."""

    def __init__(self, root: Path, config: Config, *, clock: Callable[[], float] = time.time) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._config = config
        self._clock = clock
        self._blobs = Blobs(root)
        self._store = Store(root, clock=clock)
        self._secret = self._store.secret()
        self._spool = root / "incoming"

    def close(self) -> None:
        self._store.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            response = await self._respond(Request(scope, receive))
        except RefusalError as refusal:
            response = _refused(refusal)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        raw_path = request.scope["raw_path"].decode("ascii", "replace")
        parts = tuple(unquote(part) for part in raw_path.strip("/").split("/"))
        if request.method == "PUT" and parts[0] == "lfs":
            return await self._receive_lfs(request, parts[1:])
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, dir=str(self._spool)) as body:
            async for chunk in request.stream():
                await run_in_threadpool(body.write, chunk)
            body.seek(0)
            call = _Call(
                method=request.method,
                parts=parts,
                raw_path=raw_path,
                query=dict(request.query_params),
                headers=request.headers,
                base=str(request.base_url).rstrip("/"),
                user=self._signed_in(request),
                body=body,
            )
            return await run_in_threadpool(self._dispatch, call)

    def _dispatch(self, call: _Call) -> Response:
        match (call.method, *call.parts):
            case ("GET", "api", "whoami-v2"):
                return self._whoami(call)
            case ("GET", "api", "organizations", name, "overview"):
                return self._organization(name)
            case ("POST", "api", "validate-yaml"):
                return JSONResponse({"errors": [], "warnings": []})
            case ("POST", "api", "repos", "create"):
                return self._create_repo(call)
            case ("DELETE", "api", "repos", "delete"):
                return self._delete_repo(call)
            case (_, "api", ("models" | "kernels") as kind, namespace, name, *rest):
                return self._repo_api(call, self._repo(call, _API_KINDS[kind], namespace, name), rest)
            case ("POST", "lfs", upload, "complete"):
                return self._complete_lfs(call, upload)
            case ("POST", *prefix, namespace, name, "info", "lfs", "objects", "batch") if name.endswith(
                ".git"
            ):
                repo = self._repo(call, _web_kind(prefix), namespace, name.removesuffix(".git"))
                return self._lfs_batch(call, repo)
            case ("POST", *prefix, namespace, name, "info", "lfs", "verify") if name.endswith(".git"):
                self._repo(call, _web_kind(prefix), namespace, name.removesuffix(".git"))
                return self._lfs_verify(call)
            case ("GET" | "HEAD", "kernels", namespace, name, "resolve", revision, *path):
                return self._file(self._repo(call, Kind.KERNEL, namespace, name), revision, "/".join(path))
            case ("GET" | "HEAD", namespace, name, "resolve", revision, *path):
                return self._file(self._repo(call, Kind.MODEL, namespace, name), revision, "/".join(path))
        raise RefusalError(404, f"This Hub does not serve {call.method} {call.raw_path}")

    def _repo_api(self, call: _Call, repo: Repo, rest: list[str]) -> Response:
        match (call.method, *rest):
            case ("GET",):
                return self._repo_info(repo, "main")
            case ("GET", "revision", revision):
                return self._repo_info(repo, revision)
            case ("GET", "refs"):
                return self._refs(repo, pulls=call.query.get("include_prs") in ("1", "true", "True"))
            case ("GET", "tree", revision, *path):
                return self._tree(call, repo, revision, "/".join(path))
            case ("POST", "paths-info", revision):
                return self._paths_info(call, repo, revision)
            case ("GET", "commits", revision):
                return self._commits(call, repo, revision)
            case ("POST", "preupload", revision):
                return self._preupload(call, repo, revision)
            case ("POST", "commit", revision):
                return self._commit(call, repo, revision)
            case ("POST", "branch", branch):
                self._may_write(call, repo)
                self._store.create_ref(repo, "heads", branch, str(call.json().get("startingPoint") or "main"))
                return Response(status_code=201)
            case ("DELETE", "branch", branch):
                self._may_write(call, repo)
                self._store.delete_ref(repo, "heads", branch)
                return Response(status_code=200)
            case ("POST", "tag", revision):
                self._may_write(call, repo)
                self._store.create_ref(repo, "tags", str(call.json().get("tag")), revision)
                return Response(status_code=201)
            case ("DELETE", "tag", tag):
                self._may_write(call, repo)
                self._store.delete_ref(repo, "tags", tag)
                return Response(status_code=200)
        raise RefusalError(404, f"This Hub does not serve {call.method} {call.raw_path}")

    # Who

    def _signed_in(self, request: Request) -> User | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        user = self._config.user_of(token)
        if user is None:
            raise RefusalError(401, "Invalid credentials in Authorization header")
        return user

    def _repo(self, call: _Call, kind: Kind, namespace: str, name: str) -> Repo:
        repo = self._store.repo(kind, f"{namespace}/{name}")
        if repo.private and (call.user is None or not call.user.owns(repo.namespace)):
            raise RefusalError(404, "Repository not found", code="RepoNotFound")
        return repo

    def _writer(self, call: _Call, namespace: str) -> User:
        if call.user is None:
            raise RefusalError(401, "Invalid username or password.")
        if call.user.role is not Role.WRITE:
            raise RefusalError(403, "You must use a token with write permission")
        if not call.user.owns(namespace):
            raise RefusalError(
                403, f'You don\'t have the required permissions to write to the namespace "{namespace}"'
            )
        return call.user

    def _may_write(self, call: _Call, repo: Repo) -> User:
        return self._writer(call, repo.namespace)

    def _may_propose(self, call: _Call, repo: Repo) -> User:
        """Opening a pull request takes write access to nothing, but a token that may write."""
        if call.user is None:
            raise RefusalError(401, "Invalid username or password.")
        return self._writer(call, call.user.name if "create_pr" in call.query else repo.namespace)

    def _whoami(self, call: _Call) -> Response:
        if call.user is None:
            raise RefusalError(401, "Invalid username or password.")
        return JSONResponse(
            {
                "type": "user",
                "id": call.user.name,
                "name": call.user.name,
                "fullname": call.user.name,
                "orgs": [{"type": "org", "id": org, "name": org} for org in call.user.orgs],
                "auth": {
                    "type": "access_token",
                    "accessToken": {"displayName": "token", "role": str(call.user.role)},
                },
            }
        )

    def _organization(self, name: str) -> Response:
        if name not in self._config.orgs:
            raise RefusalError(404, "This organization does not exist")
        overview: dict[str, Any] = {"name": name, "fullname": name, "avatarUrl": "", "isEnterprise": False}
        if name in self._config.trusted_orgs:
            overview["trustedKernelPublisher"] = True
        return JSONResponse(overview)

    # Repositories

    def _named(self, call: _Call) -> tuple[Kind, str, dict[str, Any]]:
        document = call.json()
        name, namespace = str(document.get("name", "")), document.get("organization")
        if "/" in name and namespace is None:
            namespace, _, name = name.partition("/")
        if namespace is None:
            if call.user is None:
                raise RefusalError(401, "Invalid username or password.")
            namespace = call.user.name
        try:
            kind = Kind(document.get("type") or "model")
        except ValueError:
            raise RefusalError(400, "This Hub serves model and kernel repositories only") from None
        return kind, f"{namespace}/{name}", document

    def _create_repo(self, call: _Call) -> Response:
        kind, name, document = self._named(call)
        namespace = name.partition("/")[0]
        if namespace in RESERVED_NAMESPACES or not self._config.has_namespace(namespace):
            if call.user is None:
                raise RefusalError(401, "Invalid username or password.")
            raise RefusalError(404, f"The namespace {namespace!r} does not exist")
        user = self._writer(call, namespace)
        if kind is Kind.KERNEL and not self._config.allow_kernels:
            raise RefusalError(403, "You are not allowed to create kernel repositories")
        url = f"{call.base}/{_web_prefix(kind)}{name}"
        attributes = _regular(_GITATTRIBUTES, self._blobs.put)
        try:
            self._store.create_repo(
                kind,
                name,
                private=document.get("visibility") == "private" or document.get("private") is True,
                initial=[Put(path=".gitattributes", file=attributes)],
                message=Message(author=user.name, title="initial commit"),
            )
        except RefusalError as refusal:
            # The client reads the address of the repository that exists from here.
            refusal.url = url if refusal.status == 409 else None
            raise
        return JSONResponse({"url": url, "name": name})

    def _delete_repo(self, call: _Call) -> Response:
        kind, name, _ = self._named(call)
        namespace, _, short = name.partition("/")
        repo = self._repo(call, kind, namespace, short)
        self._may_write(call, repo)
        self._store.delete_repo(repo)
        return Response(status_code=200)

    def _repo_info(self, repo: Repo, revision: str) -> Response:
        commit = self._store.resolve(repo, revision)
        return JSONResponse(
            {
                "_id": f"{repo.id:024x}",
                "id": repo.name,
                "modelId": repo.name,
                "author": repo.namespace,
                "sha": commit.oid,
                "private": repo.private,
                "gated": False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "createdAt": _date(repo.created),
                "lastModified": _date(commit.time),
                "siblings": [{"rfilename": path} for path in sorted(commit.files)],
            }
        )

    def _refs(self, repo: Repo, *, pulls: bool) -> Response:
        refs = self._store.refs(repo)

        def under(prefix: str, strip: str) -> list[dict[str, str]]:
            return [
                {"name": name.removeprefix(strip), "ref": name, "targetCommit": oid}
                for name, oid in refs.items()
                if name.startswith(prefix)
            ]

        listing = {
            "branches": under("refs/heads/", "refs/heads/"),
            "tags": under("refs/tags/", "refs/tags/"),
            "converts": [],
        }
        if pulls:
            listing["pullRequests"] = under("refs/pr/", "")
        return JSONResponse(listing)

    # Reading

    def _tree(self, call: _Call, repo: Repo, revision: str, folder: str) -> Response:
        commit = self._store.resolve(repo, revision)
        entries = list(_entries(commit, folder, recursive=_true(call.query.get("recursive"))))
        if not entries and folder:
            raise RefusalError(404, f"{folder} does not exist on {revision}", code="EntryNotFound")
        return self._page(call, entries)

    def _paths_info(self, call: _Call, repo: Repo, revision: str) -> Response:
        commit = self._store.resolve(repo, revision)
        wanted = set(parse_qs(call.body.read().decode(errors="replace")).get("paths", []))
        return JSONResponse(
            [entry for entry in _entries(commit, "", recursive=True) if entry["path"] in wanted]
        )

    def _commits(self, call: _Call, repo: Repo, revision: str) -> Response:
        return self._page(
            call,
            [
                {
                    "id": commit.oid,
                    "title": commit.title,
                    "message": commit.body,
                    "date": _date(commit.time),
                    "authors": [{"user": commit.author}],
                }
                for commit in self._store.history(repo, revision)
            ],
        )

    def _page(self, call: _Call, items: list[dict[str, Any]]) -> Response:
        try:
            start = int(call.query.get("cursor", "0"))
        except ValueError:
            raise RefusalError(400, "Invalid cursor") from None
        end = start + self._config.page_size
        headers = {}
        if end < len(items):
            query = urlencode({**call.query, "cursor": str(end)})
            # NB: the path as it came; a decoded refs/pr/1 in it would be another address.
            headers["Link"] = f'<{call.base}{call.raw_path}?{query}>; rel="next"'
        return JSONResponse(items[start:end], headers=headers)

    def _file(self, repo: Repo, revision: str, path: str) -> Response:
        commit = self._store.resolve(repo, revision)
        headers = {"X-Repo-Commit": commit.oid}
        file = commit.files.get(path)
        if file is None:
            refusal = RefusalError(404, f"{path} does not exist on {revision}", code="EntryNotFound")
            return _refused(refusal, headers)
        headers["ETag"] = f'"{file.sha256 if file.lfs else file.oid}"'
        if file.lfs:
            headers["X-Linked-Etag"] = headers["ETag"]
            headers["X-Linked-Size"] = str(file.size)
        # NB: no redirect as on the real Hub: clients follow one on the same host and miss the headers above.
        return FileResponse(
            self._blobs.path(file.sha256), media_type="application/octet-stream", headers=headers
        )

    # Writing

    def _preupload(self, call: _Call, repo: Repo, revision: str) -> Response:
        self._may_propose(call, repo)
        present = self._store.resolve(repo, revision).files
        answers = []
        for wanted in _objects(call.json(), "files"):
            path, size = str(wanted.get("path")), _number(wanted, "size")
            sample = _decoded(str(wanted.get("sample", "")))
            lfs = size >= _LFS_FROM or b"\0" in sample
            answer: dict[str, Any] = {
                "path": path,
                "uploadMode": "lfs" if lfs else "regular",
                "shouldIgnore": False,
            }
            if path in present:
                file = present[path]
                answer["oid"] = file.sha256 if file.lfs else file.oid
            answers.append(answer)
        return JSONResponse({"files": answers})

    def _commit(self, call: _Call, repo: Repo, revision: str) -> Response:
        user = self._may_propose(call, repo)
        parent: str | None = None
        message: Message | None = None
        changes: list[Change] = []
        with self._blobs.batch() as put:
            for line in call.body:
                if not line.strip():
                    continue
                key, value = _line(line)
                if key == "header":
                    parent = value.get("parentCommit")
                    message = Message(
                        author=user.name,
                        title=str(value.get("summary", "")),
                        body=str(value.get("description") or ""),
                    )
                else:
                    changes.append(self._change(key, value, put))
        if message is None:
            raise RefusalError(400, "The commit has no header")
        if "create_pr" in call.query:
            number, commit = self._store.open_pull(repo, revision, changes, message, parent=parent)
            pull = {"pullRequestUrl": f"{call.base}/{_web_prefix(repo.kind)}{repo.name}/discussions/{number}"}
        else:
            commit, pull = self._store.commit(repo, revision, changes, message, parent=parent), {}
        url = f"{call.base}/{_web_prefix(repo.kind)}{repo.name}/commit/{commit.oid}"
        return JSONResponse(
            {"success": True, "commitOid": commit.oid, "commitUrl": url, "hookOutput": "", **pull}
        )

    def _change(self, key: str, value: Mapping[str, Any], put: Callable[[bytes], str]) -> Change:
        path = str(value.get("path", ""))
        match key:
            case "file":
                check_path(path)
                if value.get("encoding") != "base64":
                    raise RefusalError(400, f"Unknown encoding of {path}")
                return Put(path=path, file=_regular(_decoded(str(value.get("content", ""))), put))
            case "lfsFile":
                return Put(path=path, file=self._lfs_file(str(value.get("oid"))))
            case "deletedFile":
                return Remove(path=path)
            case "deletedFolder":
                return Remove(path=path, folder=True)
        raise RefusalError(400, f"Unknown operation {key!r}")

    def _lfs_file(self, sha256: str) -> File:
        if not self._has_blob(sha256):
            raise RefusalError(400, f"The LFS object {sha256} was not uploaded")
        size = self._blobs.path(sha256).stat().st_size
        return File(oid=blob_oid(pointer(sha256, size)), size=size, sha256=sha256, lfs=True)

    def _has_blob(self, sha256: str) -> bool:
        try:
            return self._blobs.has(sha256)
        except ValueError:
            raise RefusalError(400, f"Not a sha256: {sha256!r}") from None

    # LFS

    def _lfs_batch(self, call: _Call, repo: Repo) -> Response:
        # NB: the client sends no `ref` for a pull request, which needs no write access to this repository.
        document = call.json()
        if call.user is None:
            raise RefusalError(401, "Invalid username or password.")
        self._writer(call, repo.namespace if "ref" in document else call.user.name)
        if document.get("operation") != "upload":
            raise RefusalError(400, "Only uploads go through this address")
        multipart = self._config.part_size is not None and "multipart" in document.get("transfers", [])
        objects = []
        for wanted in _objects(document, "objects"):
            oid, size = str(wanted.get("oid")), _number(wanted, "size")
            answer: dict[str, Any] = {"oid": oid, "size": size}
            if not self._has_blob(oid):
                answer["actions"] = self._upload_actions(call, oid, size, multipart=multipart)
            objects.append(answer)
        return JSONResponse({"transfer": "multipart" if multipart else "basic", "objects": objects})

    def _upload_actions(self, call: _Call, oid: str, size: int, *, multipart: bool) -> dict[str, Any]:
        verify = {"href": f"{call.base}{call.raw_path.removesuffix('/objects/batch')}/verify", "header": {}}
        part_size = self._config.part_size
        if not multipart or part_size is None or size <= part_size:
            return {
                "upload": {"href": self._signed(call.base, oid, oid, size), "header": {}},
                "verify": verify,
            }
        upload = secrets.token_hex(16)
        count = -(-size // part_size)
        parts = {
            str(number): self._signed(
                call.base, f"{upload}/{number}", oid, min(part_size, size - (number - 1) * part_size)
            )
            for number in range(1, count + 1)
        }
        complete = self._signed(call.base, f"{upload}/complete", oid, size)
        return {
            "upload": {"href": complete, "header": {"chunk_size": str(part_size), **parts}},
            "verify": verify,
        }

    def _signed(self, base: str, path: str, oid: str, size: int) -> str:
        """An address that is its own permission: uploads carry no token."""
        expires = int(self._clock()) + _ADDRESS_LIFETIME
        query = {"oid": oid, "size": size, "expires": expires}
        return f"{base}/lfs/{quote(path)}?{urlencode({**query, 'signature': self._signature(path, query)})}"

    def _signature(self, path: str, query: Mapping[str, Any]) -> str:
        text = json.dumps([path, str(query["oid"]), str(query["size"]), str(query["expires"])])
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def _permitted(self, path: str, query: Mapping[str, str]) -> tuple[str, int]:
        """The sha256 and size that this signed address is for."""
        if not {"oid", "size", "expires", "signature"} <= query.keys() or not hmac.compare_digest(
            self._signature(path, query), query["signature"]
        ):
            raise RefusalError(403, "The upload address is not signed by this Hub")
        if int(query["expires"]) < self._clock():
            raise RefusalError(403, "The upload address has expired")
        return query["oid"], int(query["size"])

    async def _receive_lfs(self, request: Request, parts: tuple[str, ...]) -> Response:
        oid, size = self._permitted("/".join(parts), request.query_params)
        with self._blobs.receive() as incoming:
            async for chunk in request.stream():
                await run_in_threadpool(incoming.write, chunk)
                if incoming.size > size:
                    raise RefusalError(400, f"More than the announced {size} bytes")
            if incoming.size != size:
                raise RefusalError(400, f"{incoming.size} bytes instead of the announced {size}")
            if len(parts) == 1:
                if incoming.sha256 != oid:
                    raise RefusalError(400, f"The content does not hash to {oid}")
                await run_in_threadpool(incoming.keep)
            else:
                await run_in_threadpool(incoming.keep_as, self._blobs.part_path(parts[0], int(parts[1])))
            return Response(status_code=200, headers={"ETag": f'"{incoming.sha256}"'})

    def _complete_lfs(self, call: _Call, upload: str) -> Response:
        oid, size = self._permitted(f"{upload}/complete", call.query)
        numbers = [_number(part, "partNumber") for part in _objects(call.json(), "parts")]
        paths = [self._blobs.part_path(upload, number) for number in numbers]
        if numbers != list(range(1, len(numbers) + 1)) or not all(path.is_file() for path in paths):
            raise RefusalError(400, "Parts are missing")
        with self._blobs.receive() as incoming:
            for path in paths:
                with path.open("rb") as part:
                    while chunk := part.read(_IN_MEMORY):
                        incoming.write(chunk)
            if (incoming.sha256, incoming.size) != (oid, size):
                raise RefusalError(400, f"The parts do not make up {oid}")
            incoming.keep()
        for path in paths:
            path.unlink()
        return Response(status_code=200)

    def _lfs_verify(self, call: _Call) -> Response:
        document = call.json()
        oid = str(document.get("oid"))
        if not self._has_blob(oid) or self._blobs.path(oid).stat().st_size != document.get("size"):
            raise RefusalError(404, f"The LFS object {oid} is not here in this size", code="EntryNotFound")
        return Response(status_code=200)


def _regular(content: bytes, put: Callable[[bytes], str]) -> File:
    """A file that git itself would hold, its content handed to `put`."""
    return File(oid=blob_oid(content), size=len(content), sha256=put(content), lfs=False)


def _entries(commit: Commit, folder: str, *, recursive: bool) -> Iterator[dict[str, Any]]:
    """What a listing shows below a folder: folders and files, by path."""
    below = f"{folder}/" if folder else ""
    shown: dict[str, dict[str, Any]] = {}
    for path, oid in tree_oids(commit.files).items():
        if path.startswith(below) and path != folder and (recursive or "/" not in path[len(below) :]):
            shown[path] = {"type": "directory", "oid": oid, "size": 0, "path": path}
    for path, file in commit.files.items():
        if path.startswith(below) and (recursive or "/" not in path[len(below) :]):
            shown[path] = {"type": "file", "oid": file.oid, "size": file.size, "path": path}
            if file.lfs:
                length = len(pointer(file.sha256, file.size))
                shown[path]["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": length}
    for path in sorted(shown):
        yield shown[path]


def _refused(refusal: RefusalError, headers: Mapping[str, str] | None = None) -> Response:
    answer = {"error": refusal.message}
    if refusal.url is not None:
        answer["url"] = refusal.url
    extra = {"X-Error-Message": refusal.message.encode("ascii", "backslashreplace").decode()}
    if refusal.code is not None:
        extra["X-Error-Code"] = refusal.code
    return JSONResponse(answer, status_code=refusal.status, headers={**(headers or {}), **extra})


def _web_kind(prefix: list[str]) -> Kind:
    match prefix:
        case []:
            return Kind.MODEL
        case ["kernels"]:
            return Kind.KERNEL
    raise RefusalError(404, "Repository not found", code="RepoNotFound")


def _web_prefix(kind: Kind) -> str:
    return "kernels/" if kind is Kind.KERNEL else ""


def _line(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        document = json.loads(line)
        key, value = document["key"], document["value"]
    except (ValueError, KeyError, TypeError):
        raise RefusalError(400, "A line of the commit is no operation") from None
    if not isinstance(key, str) or not isinstance(value, dict):
        raise RefusalError(400, "A line of the commit is no operation")
    return key, value


def _objects(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    items = document.get(key)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise RefusalError(400, f"{key!r} must be a list of objects")
    return items


def _number(document: Mapping[str, Any], key: str) -> int:
    value = document.get(key)
    if not isinstance(value, int) or value < 0:
        raise RefusalError(400, f"{key!r} must be a whole number")
    return value


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise RefusalError(400, "Invalid base64") from None


def _true(word: str | None) -> bool:
    return (word or "").lower() in ("true", "1")


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
