"""The face names the extra to install when torch is missing."""

import subprocess
import sys


def test_without_torch_the_face_names_the_extra():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import dcp_runtime\n"
        "try:\n    dcp_runtime.DCPAttn\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'dcp-dsl[run]'" in done.stdout
