"""The Python dependencies that kbuild allows are those that the public loader accepts."""

import json
from importlib.metadata import files

from kbuild.config.dependencies import PythonDepends


def test_same_lists_as_the_loader() -> None:
    (path,) = [path for path in files("kernels") or [] if path.name == "python_depends.json"]
    theirs = json.loads(path.read_text())
    ours = PythonDepends.load()
    assert set(ours.general) == set(theirs["general"])
    listed = {name: set(packages) for name, packages in theirs["backends"].items() if packages}
    assert {backend.value: set(packages) for backend, packages in ours.backends.items()} == listed
    for table in (theirs["general"], *theirs["backends"].values()):
        for name, entry in table.items():
            assert ours.module(name) == entry["python"][0].get("import")
