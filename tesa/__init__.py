"""What a value is: the sparsity attribute of a tensor, patterns, and masks from elsewhere."""

from sparta.tesa.attribute import TeSA as TeSA
