"""Lay out the folder of one variant: the Python package, the library, `_ops.py` and metadata.json."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

OPS = '''\
"""The ops of this build. Generated; the namespace is unique to the build."""

import torch
{import_library}
ops = torch.ops.{namespace}


def add_op_namespace_prefix(op_name: str) -> str:
    """`op_name` under this build's namespace, for `torch.library.register_fake` and the like."""
    return f"{namespace}::{{op_name}}"
'''


def main() -> None:
    attrs = json.loads(Path(".attrs.json").read_text())
    sys.path[:0] = attrs["modules"]
    i, out = attrs["inputs"], Path(attrs["outputs"]["out"])
    namespace = i["namespace"]
    shutil.copytree(i["files"], out)
    for path in [out, *out.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    import_library = "" if i["noarch"] else f"\nfrom . import {namespace}\n"
    (out / "_ops.py").write_text(OPS.format(namespace=namespace, import_library=import_library))
    if i["library"]:
        for library in Path(i["library"]).iterdir():
            shutil.copy(library, out)
    write_metadata(i["metadata"], out)


def write_metadata(facts: dict[str, Any], out: Path) -> None:
    import kbuild
    from kbuild import metadata as m

    archs, kernel = facts["archs"], facts["provenance"]
    m.Metadata(
        id=facts["id"],
        name=facts["name"],
        version=facts["version"],
        license=facts["license"],
        backend=m.BackendInfo(
            type=m.BackendType(facts["backend"]), archs=None if archs is None else tuple(archs)
        ),
        python_depends=tuple(facts["python_depends"]),
        kernel_depends=tuple(
            m.KernelDependency(repo_id=d["repo-id"], version=d.get("version"), revision=d.get("revision"))
            for d in facts["kernel_depends"]
        ),
        upstream=facts["upstream"],
        source=facts["source"],
        digest=m.digest_of(out),
        provenance=m.Provenance(
            kernel_builder=m.BuilderVersion(version=kbuild.__version__),
            kernel=None if kernel is None else m.GitStatus(commit=kernel["commit"], dirty=kernel["dirty"]),
        ),
    ).write(out / m.FILE_NAME)


main()
