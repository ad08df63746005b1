"""What Transformers gives, split into what the encoder, the language model and their processors need."""

from triptych.models import torchvision_cpu

torchvision_cpu.install()  # before any module of this package imports Transformers
