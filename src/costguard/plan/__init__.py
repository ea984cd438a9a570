"""How a run will end: its plan, the forecast of its time and money, and how good such forecasts were."""
