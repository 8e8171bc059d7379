"""A module that no zygote may load."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
