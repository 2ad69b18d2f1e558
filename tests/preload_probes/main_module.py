"""Prints __main__ with its attributes, the command line and the path."""

import seen

seen.main_module()
