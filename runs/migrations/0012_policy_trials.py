from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('portal', '0006_checkpoint_walls'),
        ('runs', '0011_changes_requested'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='egressgrant',
            name='facts',
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='toolcall',
            name='facts',
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddIndex(
            model_name='toolcall',
            index=models.Index(fields=['tenant', 'created_at'], name='call_history_idx'),
        ),
    ]
