import numpy as np

import veltair

image = np.random.default_rng(0).random((1, 3, 96, 96), np.float32)
with veltair.Client("grpc://127.0.0.1:8001") as client:
    print(client.infer("mine", image, deadline_ms=50).array.round(3))
