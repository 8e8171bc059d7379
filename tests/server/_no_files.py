"""Program that uses a store of limits when it has no open files left, and again when it has some."""

import os
import resource

from callboard import Limit, StorageError
from callboard.extend import PermitRequest
from callboard_actors.redis import RedisLimits

store = RedisLimits("redis://127.0.0.1:1")
request = PermitRequest(limit=Limit(concurrency=1), name="fetch", title="fetch")
store._connection_factory()  # imports of the first use need files, too
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files: list[int] = []
try:
    while True:
        files.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
try:
    store.ask(request, lambda: None)
except StorageError as error:
    print(error)
for file in files:
    os.close(file)
print(store.ask(request, lambda: None).phase.name)
store.close()
