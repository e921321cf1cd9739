"""Checkpoints on disk: safetensors files and Hugging Face directories.

``header`` parses what a safetensors file says about itself, ``directory`` finds the files
that make up a checkpoint, ``mapped`` shows their bytes through memory maps, ``write`` makes
new ones, and ``durable`` is the file handling under all of them: nothing appears under its
final name before it is complete and on disk.
"""

from .mapped import Checkpoint
from .write import write_checkpoint, write_safetensors

__all__ = ["Checkpoint", "write_checkpoint", "write_safetensors"]
