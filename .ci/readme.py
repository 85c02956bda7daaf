"""Print a shell command of the README, or run the Python blocks of a page.

`readme.py command NUMBER`, or `readme.py run FILE`, in a new folder and every block in a fresh
namespace.
"""

import gc
import os
import re
import sys
import tempfile
from pathlib import Path


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def main() -> None:
    if sys.argv[1] == "command":
        block = blocks(Path("README.md").read_text(), "bash")[int(sys.argv[2])]
        print(block.split("#")[0].strip())
    else:
        gc.disable()  # a part of the time, as JAX makes much garbage while it compiles
        page = Path(sys.argv[2])
        text = page.read_text()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            for number, block in enumerate(blocks(text, "python")):
                exec(compile(block, f"{page}, block {number}", "exec"), {"__name__": "page"})
            os.chdir("/")


main()
