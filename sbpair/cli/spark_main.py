"""The file for spark-submit: `spark-submit … spark_main.py replay run …`, in the words of the command line."""

import runpy
import sys

if __name__ == "__main__":
    # Python puts this file's directory first; its modules would hide others of the same name.
    sys.path.pop(0)
    runpy.run_module("sbpair", run_name="__main__")
