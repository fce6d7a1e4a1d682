import torch
from torch import nn

import veltair


def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.SiLU())


head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
module = nn.Sequential(block(3, 32), block(32, 64), block(64, 128), head)
image = torch.zeros(1, 3, 96, 96)
print(veltair.compile(module, "artifacts/mine", example=image, name="mine", qos_ms=20).summary())
