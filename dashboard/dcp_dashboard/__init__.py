"""Everything a person looks at in a browser: placement, balance, and who waits for whom.

`create_app` makes the Dash application over a folder of `.dcpplan` files, `serve` runs it on the
loopback interface. The demonstration that walks through all rooms lives here too, since only this
room may import all the others. Names load on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
