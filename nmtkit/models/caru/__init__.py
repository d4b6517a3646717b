"""CARU: the unit, attention gated by it or by a GRU, CAEmbed, and the models made of them."""

from nmtkit.models.caru.cell import CARUCell as CARUCell
from nmtkit.models.caru.layer import CARU as CARU
from nmtkit.models.caru.model import CARUAttention as CARUAttention
from nmtkit.models.caru.model import GAtt as GAtt
from nmtkit.models.caru.model import GRUInv as GRUInv
