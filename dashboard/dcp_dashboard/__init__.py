"""Shows plans, runs and masks in a browser: `serve` a folder of `.dcpplan` files.

`create_app` makes the Dash application, `serve` runs it on the loopback interface until Ctrl-C,
`start_server` in a thread. The demonstration lives here too, since only this package may import
all the others. Names load on first use.
"""

import lazy_loader

from dcp_dsl.extras import named_by_extra

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = named_by_extra(_load, "dashboard")
