"""Another collection filled, verified and put behind the alias, and the way back."""
