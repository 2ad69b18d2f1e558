"""Imports a module whose import prints, warns, sets a variable and adds a filter."""

import os
import sys
import warnings

import seen

print("before the import")
seen.show("variable", os.environ.get("NOISY_IMPORT_SET"))
seen.show("filters", warnings.filters)
print("error before the import", file=sys.stderr)
if "always" in sys.argv:
    warnings.simplefilter("always")
if "ignore" in sys.argv:
    warnings.simplefilter("ignore")
if "error" in sys.argv:
    warnings.simplefilter("error")
if "redirect" in sys.argv:
    import contextlib
    import io
    with contextlib.redirect_stdout(io.StringIO()) as text:
        import noisy_import
    seen.show("redirected", text.getvalue())
if "record" in sys.argv:
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        import noisy_import
    seen.show("recorded", [(str(each.message), each.category, each.lineno) for each in recorded])
import noisy_import  # noqa: E402

print("after the import")
seen.show("variable", os.environ.get("NOISY_IMPORT_SET"))
seen.show("read", noisy_import.READ)
seen.show("filters", [(each[0], str(each[1])) for each in warnings.filters])
warnings.warn("never mind")
import noisy_import as again  # noqa: E402

seen.show("same", again is noisy_import)
