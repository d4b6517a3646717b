"""`pytest tests/models --variant package.module:Class` runs the contract over a model of your own."""


def pytest_addoption(parser):
    parser.addoption("--variant", action="append", default=[], help="check the contract of this variant (repeatable) instead of the table's")


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        from tests.models.cases import CASES, Case

        named = [Case(variant) for variant in metafunc.config.getoption("--variant", default=[])]
        metafunc.parametrize("case", named or CASES, ids=str)
