"""Prints what the user's own sitecustomize and usercustomize did."""

import sys

import seen

for name in ("sitecustomize", "usercustomize"):
    module = sys.modules.get(name)
    seen.show(name, module and (module.__name__, module.__file__, module.SAW, sorted(vars(module))))
seen.show("order", [name for name in sys.modules if name.endswith("customize")])
seen.main_module()
