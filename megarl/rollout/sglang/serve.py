"""Runs in SGLang's environment: its own server behind megarl's guard.

SGLang takes no middleware on its command line, and with --api-key it writes the key into its log.
"""

import os
import sys

from sglang.launch_server import run_server
from sglang.srt.entrypoints.http_server import app
from sglang.srt.server_args import prepare_server_args
from sglang.srt.utils import kill_process_tree

from megarl.rollout.guard import RequireToken

if __name__ == "__main__":
    app.add_middleware(RequireToken)
    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
