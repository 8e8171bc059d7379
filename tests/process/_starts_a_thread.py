"""Module that starts a thread, which a zygote must not import."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
