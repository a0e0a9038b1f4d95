"""Write first-minute.txt: from a blank folder to the first answer, with nothing installed and nothing cached.

The wheels are built of this tree, as a release has them; what they need is downloaded from pip's index.

`.venv/bin/python -m docs.captures.first_minute`
"""

from pathlib import Path

SHOWN = Path(__file__).with_name("first-minute.txt")
PARTS = ("client", "devserver", ".")
MB = 1_000_000
WAIT_S = 60
INSTALL = "uv pip install --quiet 'agentmemory-operator[dev]'"
