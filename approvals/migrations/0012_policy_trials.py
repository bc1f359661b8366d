from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('approvals', '0011_removal_digest'),
        ('portal', '0006_checkpoint_walls'),
        ('runs', '0011_changes_requested'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='packet',
            name='facts',
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='policyversion',
            name='comment',
            field=models.TextField(blank=True),
        ),
        migrations.AddIndex(
            model_name='packet',
            index=models.Index(fields=['tenant', 'kind', 'opened_at'], name='packet_history_idx'),
        ),
    ]
