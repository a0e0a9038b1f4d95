"""Run pip, showing how many of the locked packages it has fetched: `run_pip.py FILE pip install -r FILE ...`.

By itself, pip prints either nothing for a minute or two lines for each package. Its output is printed if it fails.
"""

import re
import subprocess
import sys
from collections.abc import Sequence

STEP = 10


def main(lock: str, command: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    with open(lock, encoding="utf-8") as file:
        total = len(re.findall(r"^[\w.-]+==", file.read(), re.MULTILINE))
    output, fetched = list[str](), 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout or ():
            output.append(line)
            fetched += line.startswith("Collecting ")
            if line.startswith("Collecting ") and fetched % STEP == 0:
                print(f"  {fetched} of {total} packages", flush=True)
            elif line.startswith("Installing collected"):
                print(f"  {total} of {total} packages, writing them to disk ...", flush=True)
    if pip.returncode:
        sys.stderr.write("".join(output))
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
