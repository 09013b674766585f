"""Copy every variant into one folder, each under its name."""

import json
import shutil
from pathlib import Path

attrs = json.loads(Path(".attrs.json").read_text())
for name, source in attrs["inputs"]["variants"].items():
    shutil.copytree(source, Path(attrs["outputs"]["out"]) / name)
