"""Shows plans, runs and masks in a browser: `serve` a folder of `.dcpplan` files.

`create_app` makes the Dash application, `serve` runs it on the loopback interface until Ctrl-C,
`start_server` in a thread. The demonstration lives here too, since only this package may import
all the others. Names load on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
