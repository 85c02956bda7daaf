"""Kernels: functions of two points, whose hyper-parameters are the leaves of a pytree."""

from .base import Custom as Custom
from .base import Kernel as Kernel
from .base import Product as Product
from .base import Scaled as Scaled
from .base import Sum as Sum
from .dot_product import Linear as Linear
from .dot_product import Polynomial as Polynomial
from .mixed import Mixed as Mixed
from .mixture import Mixture as Mixture
from .projected import Projected as Projected
from .stationary import RBF as RBF
from .stationary import Laplacian as Laplacian
from .stationary import Matern32 as Matern32
from .stationary import Matern52 as Matern52
from .stationary import RationalQuadratic as RationalQuadratic
