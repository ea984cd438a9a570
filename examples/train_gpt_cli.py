"""The training of train_gpt.py from a configuration file, with LightningCLI.

Run: python examples/train_gpt_cli.py fit --config configs/cost_monitor.yaml
"""

from lightning.pytorch.cli import LightningCLI

from train_gpt import GPT, StdlibText


def main() -> None:
    """Builds trainer, model and data from the command line and does what it asks for."""
    # CostMonitor comes from the file too: the code of a training need not name it at all.
    LightningCLI(GPT, StdlibText, save_config_callback=None)


if __name__ == "__main__":
    main()
