"""Write demo.txt and demo.svg: the output of `make demo`, and a drawing of the start of some scenes.

`.venv/bin/python -m docs.captures.demo`
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from docs.captures.drawing import terminal
from tests.support.programs import ROOT, clean_environment

CAPTURE = Path(__file__).with_name("demo.txt")
MAX_LINES = 46
"""Maximum number of lines of the drawing."""
DRAWN = re.compile("Edit the manifest|Nothing is lost|numbers")
"""Headlines of the scenes in the drawing."""
_SCENE = re.compile(r"^(?=\d of \d  \S|The numbers$)", re.M)


def main() -> None:
    """Run the demo, write its output, and draw it."""
    environment = clean_environment() | {"COLUMNS": "100", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo" / "demo.py")],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    text = "".join(f"{line.rstrip()}\n" for line in done.stdout.strip().splitlines())
    CAPTURE.write_text(f"$ make demo\n\n{text}")
    CAPTURE.with_suffix(".svg").write_text(drawing_of(text))


def drawing_of(text: str) -> str:
    """Draw the scenes of `DRAWN`, or all if none matches. Long scenes are cut until all fit into `MAX_LINES`."""
    scenes = [scene.rstrip().splitlines() for scene in _SCENE.split(text) if scene.strip()]
    scenes = [scene for scene in scenes if DRAWN.search(scene[0])] or scenes
    fitting = (n for n in range(3, MAX_LINES) if sum(min(len(scene), n) + 1 for scene in scenes) < MAX_LINES)
    scene_lines = max(fitting, default=2)
    shown = [[*scene[: scene_lines - 1], "…"] if len(scene) > scene_lines else scene for scene in scenes]
    return terminal("\n\n".join(["$ make demo", *("\n".join(scene) for scene in shown)]), title="make demo")


if __name__ == "__main__":
    main()
