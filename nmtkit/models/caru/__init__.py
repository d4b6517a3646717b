"""CARU: the unit, attention gated by it or by a GRU, CAEmbed, and the models made of them."""

from nmtkit.models.caru.model import CARUAttention as CARUAttention
from nmtkit.models.caru.model import GAtt as GAtt
from nmtkit.models.caru.model import GRUInv as GRUInv
from nmtkit.models.caru.unit import CARU as CARU
from nmtkit.models.caru.unit import CARUCell as CARUCell
