"""A module whose import prints, warns, sets a variable and adds a filter, as libraries do."""

import atexit
import os
import sys
import warnings

print("noisy_import prints to standard output")
print("noisy_import prints to standard error", file=sys.stderr)
if "BUFFERED" not in os.environ:
    os.write(1, b"noisy_import writes to descriptor 1\n")
warnings.warn("noisy_import warns", UserWarning)
warnings.warn("noisy_import is old", DeprecationWarning)
warnings.filterwarnings("ignore", message="never mind")
with warnings.catch_warnings(record=True):
    warnings.simplefilter("always")
    warnings.warn("noisy_import keeps this to itself", UserWarning)
with warnings.catch_warnings():
    # The interpreter keeps the filters that it saw last.
    warnings.simplefilter("ignore")
    warnings.warn("noisy_import warns in vain")
os.environ.setdefault("NOISY_IMPORT_SET", "by the import")
READ = os.environ.get("NOISY_IMPORT_READS", "nothing")


@atexit.register
def leave():
    """Says so at exit."""
    print("noisy_import leaves")
