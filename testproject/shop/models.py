from django.db import models


class Order(models.Model):
    """What the shop sells: placed together with the message that sends its receipt."""

    email = models.EmailField()
    item = models.CharField(max_length=100)
    placed_at = models.DateTimeField(auto_now_add=True)

    def __str__(self):
        return f"order {self.pk}: {self.item}"
