"""The TileLang backend: plans become TileLang programs as text, and these become kernels."""
