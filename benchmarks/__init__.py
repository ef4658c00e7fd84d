"""How fast Veredus is, beside the limits of the machine that it runs on, measured in the same run."""
